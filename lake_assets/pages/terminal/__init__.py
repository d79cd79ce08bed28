"""What commands print: `render` is the one renderer, the other modules declare the views of each part's values.

A view returns lines and tables and prints nothing. May import stages and engines.
"""
