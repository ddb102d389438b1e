// go run . URL VERSION: what Telegraf does with its client library (paho.mqtt.golang), in its inputs.mqtt_consumer and
// its outputs.mqtt. Prints the steps that held, as JSON. VERSION 0: the library finds out, 3.1.1 first.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

const patience = 20 * time.Second

var steps []string

func check(held bool, format string, more ...any) {
	if !held {
		fmt.Fprintf(os.Stderr, format+"\n", more...)
		os.Exit(1)
	}
}

func done(token mqtt.Token, what string) {
	check(token.WaitTimeout(patience), "%s: no answer", what)
	check(token.Error() == nil, "%s: %v", what, token.Error())
}

// The options of both plugins; the consumer reconnects by itself, not by the library.
func options(url, id string, version uint, clean bool) *mqtt.ClientOptions {
	made := mqtt.NewClientOptions().AddBroker(url).SetClientID(id).SetCleanSession(clean)
	made.SetProtocolVersion(version).SetKeepAlive(60 * time.Second).SetAutoReconnect(false)
	return made.SetConnectTimeout(patience).SetWriteTimeout(patience)
}

func route(client mqtt.Client, topic string, inbox chan string) {
	client.AddRoute(topic, func(_ mqtt.Client, m mqtt.Message) { inbox <- string(m.Payload()) })
}

// Routes are there before the connection: what waited in the session comes right behind CONNACK.
func consumer(url, id string, version uint, topic string, inbox chan string) (mqtt.Client, bool) {
	client := mqtt.NewClient(options(url, id, version, false))
	route(client, topic, inbox)
	token := client.Connect()
	done(token, "CONNECT")
	return client, token.(*mqtt.ConnectToken).SessionPresent()
}

func expect(inbox chan string, payloads ...string) {
	wanted := map[string]bool{}
	for _, payload := range payloads {
		wanted[payload] = true
	}
	for len(wanted) > 0 {
		select {
		case got := <-inbox:
			check(wanted[got], "%q came twice, or was not expected", got)
			delete(wanted, got)
		case <-time.After(patience):
			check(false, "%v never came", wanted)
		}
	}
}

func main() {
	url := os.Args[1]
	number, _ := strconv.Atoi(os.Args[2])
	version := uint(number)
	id := fmt.Sprintf("telegraf%d", os.Getpid())
	topic := id + "/+/metrics"
	inbox := make(chan string, 100)

	client, present := consumer(url, id, version, topic, inbox)
	check(!present, "a session was present before there was one")
	done(client.SubscribeMultiple(map[string]byte{topic: 2}, nil), "SUBSCRIBE")
	steps = append(steps, "subscribed")

	output := mqtt.NewClient(options(url, id+"-output", version, true))
	done(output.Connect(), "CONNECT of the output")
	for qos := byte(0); qos < 3; qos++ {
		done(output.Publish(id+"/host/metrics", qos, false, fmt.Sprint("qos ", qos)), "PUBLISH")
	}
	expect(inbox, "qos 0", "qos 1", "qos 2")
	steps = append(steps, "every QoS")

	// Messages are handled and acknowledged one after the other: after this one, the PUBREC of "qos 2" is on its way.
	// Without it the broker would rightly send "qos 2" again.
	done(client.Publish(id+"/host/metrics", 0, false, "last"), "PUBLISH")
	expect(inbox, "last")
	client.Disconnect(200)
	for qos := byte(1); qos < 3; qos++ {
		done(output.Publish(id+"/host/metrics", qos, false, fmt.Sprint("waited ", qos)), "PUBLISH")
	}
	client, present = consumer(url, id, version, topic, inbox)
	check(present || version == 3, "the session is not present")
	expect(inbox, "waited 1", "waited 2")
	steps = append(steps, "persistent_session")

	done(output.Publish(id+"/retained/metrics", 1, true, "retained"), "PUBLISH")
	expect(inbox, "retained")
	done(client.Unsubscribe(topic), "UNSUBSCRIBE")
	route(client, topic, inbox) // the library has forgotten it
	done(client.SubscribeMultiple(map[string]byte{topic: 1}, nil), "SUBSCRIBE")
	expect(inbox, "retained")
	done(output.Publish(id+"/retained/metrics", 1, true, ""), "PUBLISH")
	expect(inbox, "")
	steps = append(steps, "retained")

	client.Disconnect(200)
	output.Disconnect(200)
	said, _ := json.Marshal(steps)
	fmt.Println(string(said))
}
