"""Jobs that survive lost workers: watching, restarting, freeing memory."""
