"""The runner: takes an experiment through preflight, replay of every arm, saving and the answer."""
