"""The page about a run: the run directory as HTML with curves in SVG."""
