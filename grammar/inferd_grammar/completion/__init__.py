"""The nearest legal end of a text: found by search over a matcher, kept while the text goes on, and held to by a budget."""
