"""Trees on their way through files and bytes, each into what is there at the other end."""

import pickle

import equinox as eqx
import flax.serialization
import orbax.checkpoint as ocp


def through_pickle(tree, like, folder):
    return pickle.loads(pickle.dumps(tree))


def through_orbax(tree, like, folder):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "tree", tree)
        checkpointer.wait_until_finished()
        return checkpointer.restore(folder / "tree", like)


def through_orbax_without_target(tree, like, folder):
    return through_orbax(tree, None, folder)


def through_flax(tree, like, folder):
    return flax.serialization.from_bytes(like, flax.serialization.to_bytes(tree))


def through_equinox(tree, like, folder):
    eqx.tree_serialise_leaves(folder / "tree.eqx", tree)
    return eqx.tree_deserialise_leaves(folder / "tree.eqx", like)
