"""What the text of a statement tells: tokens, window clauses, parse tree, and whether it is allowed."""
