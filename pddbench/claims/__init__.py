"""What is claimed for split prefill and decode, measured again: claim, our figure, verdict. Verdicts are computed."""
