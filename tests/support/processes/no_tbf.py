"""The process inside a network, on a kernel that has no tbf."""

import errno

from pyroute2.netlink.exceptions import NetlinkError

from harness.instruments.network import netns_server


class Kernel(netns_server.IPRoute):
    def tc(self, command, kind=None, *arguments, **more):
        if kind == "tbf":
            raise NetlinkError(errno.ENOENT, "No such file or directory")
        return super().tc(command, kind, *arguments, **more)


if __name__ == "__main__":
    netns_server.IPRoute = Kernel
    netns_server.main()
