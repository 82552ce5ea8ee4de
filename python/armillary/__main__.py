"""``python -m armillary``, also under torchrun."""

import sys

from armillary._recipe import main

sys.exit(main())
