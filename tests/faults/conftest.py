"""The planted faults use the known-truth server and the plans of the replay tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))
