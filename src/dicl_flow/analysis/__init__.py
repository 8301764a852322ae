"""Analysis: what makes the method work, measured on any weights and pairs."""
