"""The process inside a network, on a kernel that has no tbf."""

import errno

from pyroute2.netlink.exceptions import NetlinkError

from harness.instruments import network_inside


class Kernel(network_inside.IPRoute):
    def tc(self, command, kind=None, *arguments, **more):
        if kind == "tbf":
            raise NetlinkError(errno.ENOENT, "No such file or directory")
        return super().tc(command, kind, *arguments, **more)


if __name__ == "__main__":
    network_inside.IPRoute = Kernel
    network_inside.main()
