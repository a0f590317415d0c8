"""The compiled kernels: keys, rows, directories and pages, over Arrow and NumPy buffers.

Each checks its arguments at the edge and works without the GIL; the plain-Python truth it keeps to is in tests/native.
"""
