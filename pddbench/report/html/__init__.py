"""`report.html`: one self-contained page of a finished run, from the same figures as the table."""
