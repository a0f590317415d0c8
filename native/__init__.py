"""The compiled kernels: keys, row arithmetic, directories, Parquet, joins and group-by over Arrow and NumPy.

Each checks its arguments at the edge and works without the GIL; tests/native compares each with plain Python.
"""
