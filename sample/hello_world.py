"""Print a line every second for ten minutes, as a job to follow and to stop."""

from __future__ import annotations

import os
import time

SECONDS = 600

if __name__ == "__main__":
    for second in range(SECONDS):
        print(f"hello world {second} from {os.environ.get('REMOTE_TOOL_SERVER', 'here')}", flush=True)
        time.sleep(1)
