"""The first steps: what this machine is good for, and an experiment file to start from."""
