"""Reports: an answer made visible on a terminal, as a plot, as JSON."""
