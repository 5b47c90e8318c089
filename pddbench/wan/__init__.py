"""The WAN between two datacentres: its figures, how it is emulated, and how long a transfer takes over it."""
