"""`report.html`: one self-contained page of a finished run, built from the same figures as the table on the terminal."""
