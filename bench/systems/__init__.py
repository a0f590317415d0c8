"""The systems under test, each set up as its own documentation recommends, with equal durability."""
