"""The command: runs the programs of seeds, and shows the first that fails."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import programs


def main() -> int:
    parser = argparse.ArgumentParser(
        description=programs.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, default=1)
    options = parser.parse_args()
    if options.count == 1:
        print(programs.text_of(programs.program(options.seed)))
    try:
        totals = programs.check_seeds(range(options.seed, options.seed + options.count))
    except AssertionError as error:
        print(error)
        return 1
    print(totals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
