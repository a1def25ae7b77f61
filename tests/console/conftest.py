"""What every test of the console needs: the stub host importable, and a terminal that never moves by itself."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# Read by Textual when it's first imported.
os.environ["TEXTUAL_ANIMATIONS"] = "none"
os.environ.pop("NO_COLOR", None)
