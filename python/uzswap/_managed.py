"""Whether this process runs under uzswap."""


def is_managed() -> bool:
    """Whether this process runs under uzswap."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            # Packages give its file a suffix, cargo does not.
            return any(b"/libuzswap_preload" in line for line in maps)
    except OSError:
        return False
