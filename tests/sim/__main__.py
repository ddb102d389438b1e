import sys

from tests.sim.run import main

sys.exit(main())
