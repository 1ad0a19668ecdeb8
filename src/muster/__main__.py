"""`python -m muster` is `muster`."""

import sys


def main() -> None:
    """Run the command line; an interrupt is one line, even while modules are being imported."""
    try:
        from muster.cli.main import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("muster: interrupted\n")
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
