"""`python -m gpuloom`: the command line."""

from gpuloom.cli.main import main

if __name__ == "__main__":
    main()
