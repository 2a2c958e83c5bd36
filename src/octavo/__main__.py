"""`python -m octavo`: the command line."""

from octavo.cli.main import main

if __name__ == "__main__":
    main()
