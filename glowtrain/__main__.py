"""``python -m glowtrain``: the command line."""

from glowtrain.cli import main

if __name__ == "__main__":
    main()
