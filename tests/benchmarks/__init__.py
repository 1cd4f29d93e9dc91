"""What freezing costs, beside what users would pick otherwise: `python -m tests.benchmarks`.

One script a question, each a table. Times are medians of interleaved runs in one process and move
with the load of the machine; ratios move less, and counts (FLOPs, bytes, Python calls,
instructions) not at all. Peers that are not installed are named: `pip install -e '.[bench]'`.
"""
