"""Parts of `bootstrap.py`. They import only the standard library, because they run before anything is installed."""
