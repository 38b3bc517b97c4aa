import sys

from project.cli.main import main

sys.exit(main(sys.argv[1:]))
