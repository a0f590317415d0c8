"""``python -m windrow`` is the command ``windrow``, for environments whose scripts are not on the path."""

from windrow.program import main

main()
