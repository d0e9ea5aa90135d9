"""`python -m masquerade` is the command `masquerade`."""

from masquerade.cli import main

if __name__ == "__main__":
    main()
