"""The command ``tcmon``, also as ``python -m tcmon``."""

import sys


def main() -> None:
    """Run the command line; the process ends as it says, or as the program that it ran."""
    # All that a Python too old gets to see, so this file keeps to what Python 3.6 can compile.
    if not hasattr(sys, "monitoring"):
        version = ".".join(map(str, sys.version_info[:3]))
        sys.stderr.write(
            f"tcmon: error: tcmon needs CPython 3.12 or newer, and {sys.executable} is Python {version}; "
            "install tcmon for a newer one and run it there\n"
        )
        sys.exit(2)
    # What python put there: the command's folder, or with -m the current one. It is no place to look for
    # tcmon's libraries, and the program's own folder takes its place.
    if not sys.flags.safe_path:
        del sys.path[0]
    from tcmon.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
