"""What is known of a statement from its text: tokens, window clauses, parse tree, what it may do."""
