"""Checks of the package's promises: schemas with instances, the JSON Schema test suite, and every promise of a matcher."""
