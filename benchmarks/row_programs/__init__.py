"""What benchmarks/rows.py measures: the cells, their contenders and the report."""
