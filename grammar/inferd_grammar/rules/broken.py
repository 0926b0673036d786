"""What a text that breaks a rule raises."""


class RuleBroken(Exception):
    """Raised where a text goes on in a way that a rule forbids."""
