"""Follow what jobs write."""
