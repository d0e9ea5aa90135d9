"""`python -m masquerade` is the command `masquerade`."""

from masquerade.cli.app import main

if __name__ == "__main__":
    main()
