"""The page about a run: what its files say, as HTML with curves in SVG."""
