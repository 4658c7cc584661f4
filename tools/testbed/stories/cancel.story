# The advertiser cancels; the deposit comes too late, and goes back.
a advertiser create
a advertiser submit_offer
a owner accept
a watcher address_ready
a advertiser cancel
a watcher deposit 1 1 TON
a show
a refunder refunded 1 1 TON
a show

# The deposit comes first; the cancellation was sent before anybody saw it.
b advertiser create
b advertiser submit_offer
b owner accept
b watcher address_ready
b watcher deposit 1 0.4 TON
b advertiser cancel
b show
b watcher deposit 2 0.6 TON
b refunder refunded 1 0.4 TON
b refunder refunded 2 0.6 TON
b show

# Funded: neither party can cancel alone.
c advertiser create
c advertiser submit_offer
c owner accept
c watcher address_ready
c watcher deposit 1 1.5 TON
c advertiser cancel
c advertiser agree_cancel
c owner agree_cancel
c show
c refunder refunded 1 0.5 TON
c refunder refunded 2 1 TON
c show
