"""`lake_assets.IncrementalTable` and `lake_assets.SourceTable`, and the definitions of a pipeline as a whole."""
