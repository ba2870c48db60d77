"""The memory tier below the device, and transfers to and from it."""
