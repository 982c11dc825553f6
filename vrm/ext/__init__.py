"""What vrm can do beyond its core: a folder for each capability. The core imports none of it; `entry_points.ini` names
what each adds, as the metadata of an installed package does (`vrm.system.plugins`)."""
