"""Systems under test: what each must do, set up the way its own documentation recommends, with equal durability."""
