"""Programs as files: their parameters, results and manifest, read from source text and turned into JSON Schema and back."""
