"""`python -m pddbench` is the `pddbench` command."""

from pddbench.cli import main

if __name__ == "__main__":
    main()
