"""`python -m masquerade.reproduce` is `masquerade reproduce` without its dependencies."""

from masquerade.reproduce.command import main

if __name__ == "__main__":
    main()
