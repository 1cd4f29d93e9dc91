"""Which leaves a path pattern means."""

import jax.numpy as jnp
import optax
import pytest

from optax_freeze import SpecError, freeze_mask, leaf_paths
from optax_freeze._specs import read_specs, select, view
from optax_freeze._trees import Tree

HOLE = optax.MaskedNode()


def build(text):
    """A nested dictionary with these leaves, in which numbers are the keys of lists."""
    tree = {}
    for path in text.split():
        *above, last = path.split(".")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
        node[last] = jnp.ones(2)
    return tree


def meant(tree, pattern):
    seen = Tree(tree)
    specs = read_specs(pattern, "freeze")
    (found,) = select(specs, view(seen, specs, values=True), "freeze")
    return {seen.leaf_names[i] for i in found.positions}


NET = build(
    "embed.w blocks.0.w blocks.0.b blocks.1.w blocks.1.b blocks.2.w blocks.2.b "
    "l1.w l10.w l1x Dense_0.kernel Dense_1.kernel Dense_10.kernel Dense_2.kernel "
    "lora_a lora_b lora_ab head.mlp.w head.mlp.b"
)
FLAT = {path: jnp.ones(2) for path in leaf_paths(NET)}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        # names, by whole segments
        ("embed.w", "embed.w"),
        ("embed", "embed.w"),
        ("head", "head.mlp.w head.mlp.b"),
        ("l1", "l1.w"),
        ("l1*", "l1.w l10.w l1x"),
        # wildcards inside a segment
        ("blocks.*.b", "blocks.0.b blocks.1.b blocks.2.b"),
        ("lora_?", "lora_a lora_b"),
        ("lora_*", "lora_a lora_b lora_ab"),
        ("*.w", "embed.w l1.w l10.w"),
        ("?????.w", "embed.w"),
        ("b*s.1", "blocks.1.w blocks.1.b"),
        # any number of segments, also none
        ("**.b", "blocks.0.b blocks.1.b blocks.2.b head.mlp.b"),
        ("**.l1x", "l1x"),
        ("head.**", "head.mlp.w head.mlp.b"),
        ("head.**.w", "head.mlp.w"),
        ("head.mlp.**.w", "head.mlp.w"),
        ("**.**.mlp", "head.mlp.w head.mlp.b"),
        ("**.mlp.**", "head.mlp.w head.mlp.b"),
        ("**.head.**.b", "head.mlp.b"),
        # indices and slices of integer children
        ("blocks[0]", "blocks.0.w blocks.0.b"),
        ("blocks[-1]", "blocks.2.w blocks.2.b"),
        ("blocks[:-2].w", "blocks.0.w"),
        ("blocks[::2].w", "blocks.0.w blocks.2.w"),
        ("blocks[::-1].b", "blocks.0.b blocks.1.b blocks.2.b"),
        ("blocks[5:1].w", None),
        ("blocks[3]", None),
        ("blocks[-4]", None),
        ("embed[0]", None),
        ("**[1].w", "blocks.1.w"),
        ("bl*[1].w", "blocks.1.w"),
        # numbered siblings, in numeric order
        ("Dense_[:2]", "Dense_0.kernel Dense_1.kernel"),
        ("Dense_[-1].kernel", "Dense_10.kernel"),
        ("Dense_[10]", "Dense_10.kernel"),
        ("Dense_[2:]", "Dense_2.kernel Dense_10.kernel"),
        ("D*_[1]", "Dense_1.kernel"),
        ("Dense_[3]", None),
        # everything
        ("**", " ".join(FLAT)),
        ("*", " ".join(FLAT)),
        # near, but not there
        ("embed.w.x", None),
        ("emb", None),
        ("l1x.*", None),
        ("l1x.**.*", None),
        ("**.l1x.?", None),
        ("w", None),
        ("blocks.*.c", None),
        ("**.kernels", None),
    ],
)
@pytest.mark.parametrize("tree", [NET, FLAT], ids=["nested", "flat"])
def test_pattern(tree, pattern, expected):
    if expected is None:
        with pytest.raises(SpecError, match="matches no leaf of a tree of 19 leaves"):
            meant(tree, pattern)
    else:
        assert meant(tree, pattern) == set(expected.split())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("[0]", {"0.0", "0.1"}),
        ("[0][1]", {"0.1"}),
        ("[-1][-1]", {"1.1"}),
        ("[:][0]", {"0.0", "1.0"}),
        ("*[0]", {"0.0", "1.0"}),
        ("*.0", {"0.0", "1.0"}),
        ("0.1", {"0.1"}),
        ("**[-1]", {"1.0", "1.1", "0.1"}),
    ],
)
def test_lists_of_lists(pattern, expected):
    assert meant([[1.0, 2.0], (3.0, 4.0)], pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("b[2]", {"b.2"}),  # the key
        ("b[-1]", {"b.10"}),  # the position in numeric order
        ("b[0]", None),
        ("b[:2]", {"b.-3", "b.2"}),
        ("b[1:]", {"b.2", "b.10"}),
        ("b.-3", {"b.-3"}),
    ],
)
def test_an_index_is_a_key_and_a_slice_goes_by_position(pattern, expected):
    tree = {"b": {2: 1.0, 10: 2.0, -3: 3.0}}
    if expected is None:
        with pytest.raises(SpecError, match="matches no leaf"):
            meant(tree, pattern)
    else:
        assert meant(tree, pattern) == expected


@pytest.mark.parametrize(
    "key",
    ["a*", "**", "k[0]", "k[", "a..b", ".", "a.", ".a", "?", "x/y", "[0]", " ", "w]x", "a\nb", "é"],
)
def test_an_exact_text_wins_over_its_reading_as_a_pattern(key):
    tree = {"top": {key: 1.0, "ab": 2.0, "k": [3.0]}, "abc": 4.0}
    assert meant(tree, f"top.{key}") == {f"top.{key}"}


def test_an_exact_text_may_end_inside_a_dotted_key():
    tree = {"enc.layer.0.w": 1.0, "enc.layer.1": {"w": 2.0}, "enc": {"layer.2": 3.0}, "enc.l": 4.0}
    assert meant(tree, "enc.layer") == {"enc.layer.0.w", "enc.layer.1.w", "enc.layer.2"}
    assert meant(tree, "enc.layer[1:]") == {"enc.layer.1.w", "enc.layer.2"}
    assert meant(tree, "enc.layer[1].w") == {"enc.layer.1.w"}


def test_one_bare_array_is_matched_by_the_double_star_only():
    assert freeze_mask(jnp.ones(2), "**") is False
    with pytest.raises(SpecError, match="the tree is one bare leaf, which has no name"):
        freeze_mask(jnp.ones(2), "*")


@pytest.mark.parametrize("pattern", ["kernel.value", "l.kernel.value", "**.kernel.value"])
def test_a_trailing_value_may_be_written_without_variables(pattern):
    tree = {"kernel": 1.0} if pattern[0] == "k" else {"l": {"kernel": 1.0, "bias": 2.0}}
    assert {path.rpartition(".")[2] for path in meant(tree, pattern)} == {"kernel"}


@pytest.mark.parametrize("pattern", ["*.value", "**.value", "?.value", "value", "l.value"])
def test_a_trailing_value_is_not_left_out_behind_a_wildcard_or_a_node(pattern):
    with pytest.raises(SpecError, match="matches no leaf"):
        meant({"l": {"kernel": 1.0}}, pattern)


def test_the_value_that_is_left_out_is_a_leaf_only():
    tree = {"kernel": 1.0, "kernel.scale": 2.0}
    assert meant(tree, "kernel.value") == {"kernel"}


@pytest.mark.parametrize(
    ("tree", "pattern"),
    [
        # whatever the place, a name that is spelled out
        ({"a": HOLE, "z": 1.0}, "a"),
        ({"a": None, "z": 1.0}, "a"),
        ({"a": None, "z": 1.0}, "a.w"),
        ({"a": None, "z": 1.0}, "a[0].w"),
        ({"a": [None], "z": 1.0}, "a[0].w"),
        ({"a": [None], "z": 1.0}, "a[-1].*"),
        ({"a": None, "z": 1.0}, "a.**.w"),
        ({"l": {"b": None}, "z": 1.0}, "**.b"),
        ({"l": {"b": None}, "z": 1.0}, "l.*"),
        ({"a": None, "z": 1.0}, "a.w[x"),  # may have been a key
        # a hole, through wildcards as well
        ({"a": HOLE, "z": 1.0}, "*.w"),
        ({"a": HOLE, "z": 1.0}, "**.w"),
        ({"l": [HOLE], "z": 1.0}, "l.*.w[0]"),
        ({"l": [HOLE], "z": 1.0}, "*[0].w"),
        (HOLE, "anything.at.all"),
    ],
)
def test_a_place_satisfies_and_nothing_is_selected(tree, pattern):
    assert meant(tree, pattern) == set()


@pytest.mark.parametrize(
    ("tree", "pattern"),
    [
        ({"l": {"b": None}, "z": 1.0}, "**.bais"),
        ({"l": {"b": None}, "z": 1.0}, "*.b.w"),
        ({"l": {"b": None}, "z": 1.0}, "*.b[0]"),
        ({"l": {"b": None}, "z": 1.0}, "**.b.w"),
        ({"l": {"b": None}, "z": 1.0}, "**[0]"),
        ({"l": {"b": None}, "z": 1.0}, "l.c"),
        ({"l": {"b": HOLE}, "z": 1.0}, "l.c"),
        ({"l": {"b": HOLE}, "z": 1.0}, "l.c*.w"),
        ({"l": [HOLE], "z": 1.0}, "l[1]"),
    ],
)
def test_a_place_is_no_excuse_for_another_name(tree, pattern):
    with pytest.raises(SpecError, match="matches no leaf"):
        meant(tree, pattern)


def test_indices_count_places():
    tree = {"b": [HOLE, None, 1.0, 2.0]}
    assert meant(tree, "b[:3]") == {"b.2"}
    assert meant(tree, "b[-1]") == {"b.3"}
    assert meant(tree, "b[1]") == set()


def test_a_place_beside_a_dotted_key_hides_nothing():
    tree = {"a": None, "a.b": 1.0, "a.c": 2.0}
    assert meant(tree, "a.b") == {"a.b"}
    assert meant(tree, "a.*") == {"a.b", "a.c"}
    assert meant(tree, "a.?[0]") == set()  # spelled as far as the None
    assert meant(tree, "a") == {"a.b", "a.c"}


HAIKU = build("mlp/~/linear.w mlp/~/linear_1.w mlp/~/linear_2.w norm.w norm_0.w norm_1.w")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("mlp/~/linear_[0]", {"mlp/~/linear.w"}),
        ("mlp/~/linear_[:2].w", {"mlp/~/linear.w", "mlp/~/linear_1.w"}),
        ("mlp/~/linear_[2:3]", {"mlp/~/linear_2.w"}),
        ("mlp/~/linear_[-1]", {"mlp/~/linear_2.w"}),
        ("norm_[0]", {"norm_0.w"}),
        ("norm_[:]", {"norm_0.w", "norm_1.w"}),
    ],
)
def test_the_first_of_haiku_has_no_number(pattern, expected):
    assert meant(HAIKU, pattern) == expected


def test_a_name_that_is_reached_in_two_ways():
    tree = {"a": {"a": {"a": {"a": jnp.ones(2), "none": None}}}}
    assert meant(tree, "**.a.**.a") == {"a.a.a.a"}


def test_many_wildcards_in_one_segment_take_no_time():
    """By going back over every one of them this would take longer than anybody waits."""
    tree = {"a" * 200: jnp.ones(2), "aab": jnp.ones(2), "abab": jnp.ones(2)}
    with pytest.raises(SpecError, match="matches no leaf"):
        meant(tree, "*a" * 30 + "*b")
    assert meant(tree, "*a*b") == {"aab", "abab"}
    assert meant(tree, "a*ab") == {"aab", "abab"}
    assert meant(tree, "?a*b") == {"aab"}


def test_one_entry_after_another_looks_below_the_same_name():
    specs = ["*.w", "blocks[0].w", "blocks[1].b", "blocks[5]"]
    with pytest.raises(SpecError, match=r"an entry matches no leaf(.|\n)*'blocks\[5\]'"):
        freeze_mask(NET, specs)
    mask = freeze_mask(NET, specs[:-1])
    assert (mask["blocks"]["0"]["w"], mask["blocks"]["1"]["w"]) == (False, True)
    assert (mask["blocks"]["1"]["b"], mask["l1"]["w"]) == (False, False)
